"""A report as one self-contained HTML file: Jinja2 templates, Plotly charts and a small script."""
