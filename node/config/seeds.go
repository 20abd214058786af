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
	{"llm_parallel_limit", "", "`concurrency` of a handler", "a bound of one kind of work belongs to its handler; in a shared queue also `queue set --kind llm=4/1`"},
	{"max_attempts", "", "3 for a handler, 10 for delivery", "`max_attempts` of a handler and `--retries` of a task change it; being offline spends none"},
	{"base_backoff_ms", "", "1000", "the schedule of retries is a promise that tests hold (I20), not a knob"},
	{"max_backoff_ms", "", "60000 for handlers, 300000 for delivery", "the same"},
	{"max_consecutive_high", "", "100", "the rule against starvation is a promise (S14)"},
	{"lease_timeout_ms", "", "15000", "of a shared queue, which `queue set --lease` changes; a task for a named node has none that runs out"},
	{"lease_heartbeat_ms", "", "2000", "a limit of the protocol: batched, a renewal costs next to nothing"},
	{"reclaim_scan_interval_ms", "", "5000", "a dead owner is noticed by gossip long before"},
	{"suspect_recover_min_ms", "mesh.suspect_recover", "", "the dwell window of a member that was suspected"},
	{"dead_recover_min_ms", "mesh.dead_recover", "", "the same for one that was dead"},
	{"gossip_sync_sample_size", "", "32", "members told in one packet: a limit of the protocol, so that a packet stays a control frame"},
	{"mesh_prune_older_than_ms", "mesh.prune_age", "", "rows about liveness only"},
	{"mesh_prune_limit", "mesh.prune_limit", "", "at once"},
	{"mesh_prune_interval_ms", "mesh.prune_interval", "", "between two looks"},
	{"pause_worker_when_local_not_alive", "", "true", "a node that believes itself isolated claims nothing new (I16); that is no choice"},
	{"dedup window of 24 h", "", "–", "a flat window runs tasks twice: settled marks and the signed `not_after` replace it"},
	{"timeouts of 5, 10, 30, 60 s by class", "", "10m for a handler", "`timeout` of a handler; those by class are of mail and of the delivery acknowledgement"},
	{"flush of 100 ms or 100 records", "", "–", "commits are grouped without a delay: an acknowledgement means fsynced"},
	{"journal_mode, busy_timeout, foreign_keys", "", "–", "settings of SQLite, which is not used; the store's own are read back after opening"},
	{"α of the relay score", "net.score.bandwidth", "", "weighs the bandwidth"},
	{"β of the relay score", "net.score.latency", "", "weighs one over the latency: more latency must not score higher"},
	{"γ of the relay score", "net.score.loss", "", "weighs the loss, which is taken away"},
	{"dispatch strategy (ordered, ROUND_ROBIN, priority, LOAD_BALANCE)", "", "least_loaded", "`queue set --strategy`: one a queue, changed while it works"},
}
