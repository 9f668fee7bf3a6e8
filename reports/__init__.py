"""Views of a Result: tables, plots and files. They only format what a Result holds; they compute no figures."""
