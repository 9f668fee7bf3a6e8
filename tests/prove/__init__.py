"""The proof that the test suite notices wrong formulas: faults are planted one by one into a copy of the checkout."""
