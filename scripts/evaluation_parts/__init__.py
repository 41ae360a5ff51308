"""The parts of ``scripts/evaluate_suite.py``: each measures rows, makes Markdown tables of them and checks them."""
