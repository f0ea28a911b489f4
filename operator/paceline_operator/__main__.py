"""`python -m paceline_operator` runs the operator."""

from paceline_operator.main import main

main()
