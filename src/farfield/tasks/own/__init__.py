"""Bring your own: tables, arrays and folders of images become tasks."""
