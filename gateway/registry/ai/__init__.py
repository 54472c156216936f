"""AI chat: the catalog, its prices, the requests, the adapters of model upstreams and what is answered."""
