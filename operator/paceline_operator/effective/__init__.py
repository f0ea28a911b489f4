"""What was declared against what the engines do. Pure."""
