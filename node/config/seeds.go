package config

// A seed is a setting that the seed documents name.
type seed struct {
	name  string // there
	key   string // here; empty: it is no setting
	fixed string // its value where it is none
	why   string
}

// seeds is kept complete by hand: a setting that a document names is here, or
// has its reason here.
var seeds = []seed{
	{"graceful_timeout", "limits.graceful_timeout", "", "how long a stop waits for handlers"},
	{"payload_max_bytes", "limits.payload_max", "", "a larger body is sent as a file or a stream"},
	{"idempotency_ttl_days", "limits.idempotency_ttl", "", "how long a key is remembered"},
	{"done_retention_days", "limits.done_age", "", "with `limits.done_count`, for the records of finished tasks"},
	{"queue_capacity", "limits.max_pending", "", "what is bounded is what is on disk; between the heap and the workers there is no queue to size"},
	{"thread_pool_core, thread_pool_max", "limits.slots", "", "handlers are goroutines and processes: their number is what is bounded"},
	{"llm_parallel_limit", "", "`concurrency` of a handler", "a bound of one kind of work belongs to its handler"},
	{"max_attempts", "", "3 for a handler, 10 for delivery", "`max_attempts` of a handler and `--retries` of a task change it; being offline spends none"},
	{"base_backoff_ms", "", "1000", "the schedule of retries is a promise that tests hold (I20), not a knob"},
	{"max_backoff_ms", "", "60000 for handlers, 300000 for delivery", "the same"},
	{"max_consecutive_high", "", "100", "the rule against starvation is a promise (S14)"},
	{"lease_timeout_ms", "", "15000", "leases come with shared queues; a task for a named node has none that runs out"},
	{"lease_heartbeat_ms", "", "2000", "the same"},
	{"reclaim_scan_interval_ms", "", "5000", "the same"},
	{"suspect_recover_min_ms", "", "5000", "comes with membership by gossip"},
	{"dead_recover_min_ms", "", "30000", "the same"},
	{"gossip_sync_sample_size", "", "32", "the same"},
	{"mesh_prune_older_than_ms, mesh_prune_limit, mesh_prune_interval_ms", "", "–", "pruning removes rows about liveness only, and those are not kept yet"},
	{"pause_worker_when_local_not_alive", "", "true", "a node that believes itself isolated claims nothing new (I16); that is no choice"},
	{"dedup window of 24 h", "", "–", "a flat window runs tasks twice: settled marks and the signed `not_after` replace it"},
	{"timeouts of 5, 10, 30, 60 s by class", "", "10m for a handler", "`timeout` of a handler; those by class are of mail and of the delivery acknowledgement"},
	{"flush of 100 ms or 100 records", "", "–", "commits are grouped without a delay: an acknowledgement means fsynced"},
	{"journal_mode, busy_timeout, foreign_keys", "", "–", "settings of SQLite, which is not used; the store's own are read back after opening"},
	{"α, β, γ of the relay score", "", "–", "come with relays"},
	{"dispatch strategy (ordered, ROUND_ROBIN, priority, LOAD_BALANCE)", "", "–", "comes with shared queues"},
}
