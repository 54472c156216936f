"""What is sold and on which terms: operations, schemas, prices, routes, quotes; pure decisions and parsing."""
