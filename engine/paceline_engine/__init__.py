"""paceline's engine side: a vLLM plugin that reads a live table `sampling requests -> k` and reports what each k costs."""
