"""The verbs: the only way a method reaches another client."""
