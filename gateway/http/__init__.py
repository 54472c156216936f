"""The wire: server, request pipeline, problems, payment headers, routes, discovery documents."""
