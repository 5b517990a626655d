"""Commands about what customers have: accounts, members, API keys, webhooks, emails. One file for each. Domains: cli/domain."""
