"""The schema that each site reports for its data, and how sites agree on one."""
