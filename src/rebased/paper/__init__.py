"""The paper, by command: one module per table or figure."""
