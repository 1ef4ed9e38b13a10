"""What a job runs in on a node; stands on any transport."""
