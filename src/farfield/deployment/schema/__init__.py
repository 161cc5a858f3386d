"""The schema that each site reports for its data, and how the sites agree on one. It extends `tasks.user_data`."""
