"""Growing arrays: appended rows, their journal, and the oldest rows that go."""
