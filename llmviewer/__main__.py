"""`python -m llmviewer`: the command line."""

from llmviewer.cli import run

if __name__ == "__main__":
    run()
