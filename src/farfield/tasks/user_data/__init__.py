"""Bring your own data: tables, arrays and folders of images become tasks."""
