"""paceline's operator: reconciles SpeculativeServing objects and keeps k at the right pace."""
