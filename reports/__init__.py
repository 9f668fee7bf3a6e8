"""Views of a Result: tables and files now; everything here reads Result rows and computes nothing of its own."""
