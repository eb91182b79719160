"""Figures of fields and runs."""
