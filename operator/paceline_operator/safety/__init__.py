"""What goes wrong in engines: seen, named, answered one step at a time, and remembered. Pure."""
