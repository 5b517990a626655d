"""What decides whether mail may go out now: connection slots, provider budgets, health of destinations, holds, memory."""
