"""A report as one HTML file that loads nothing: templates of Jinja2, charts of Plotly, a small script of our own."""
