"""paceline's engine side: a vLLM plugin with a live table `sampling requests -> k` that reports what each k costs."""
