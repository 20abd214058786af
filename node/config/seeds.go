package config

// A seedSetting is a setting that the seed documents name.
type seedSetting struct {
	name  string // in the seed documents
	key   string // in Config; empty: not a setting
	fixed string // the fixed value if it is not a setting
	why   string
}

// seedSettings is maintained by hand and complete: it has an entry for each
// setting that a seed document names.
var seedSettings = []seedSetting{
	{"graceful_timeout", "limits.graceful_timeout", "", "how long a shutdown waits for handlers"},
	{"payload_max_bytes", "limits.payload_max", "", "a larger body is sent as a file or a stream"},
	{"idempotency_ttl_days", "limits.idempotency_ttl", "", "how long a key is remembered"},
	{"done_retention_days", "limits.done_age", "", "together with `limits.done_count`, for the records of finished tasks"},
	{"queue_capacity", "limits.max_pending", "", "the limit applies to tasks on disk; there is no queue in memory between the heap and the workers"},
	{"thread_pool_core, thread_pool_max", "limits.slots", "", "handlers are goroutines and processes; the limit applies to their number"},
	{"llm_parallel_limit", "", "`concurrency` of a handler", "the limit of one kind belongs to its handler; in a shared queue also `queue set --kind llm=4/1`"},
	{"max_attempts", "", "3 for a handler, 10 for delivery", "changed by `max_attempts` of a handler and `--retries` of a task; an offline peer uses up no attempts"},
	{"base_backoff_ms", "", "1000", "the retry schedule is a tested guarantee (I20), not a setting"},
	{"max_backoff_ms", "", "60000 for handlers, 300000 for delivery", "the same"},
	{"max_consecutive_high", "", "100", "protection against starvation is a guarantee (S14)"},
	{"lease_timeout_ms", "", "15000", "for a shared queue; `queue set --lease` changes it; the lease of a task for a named node does not expire"},
	{"lease_heartbeat_ms", "", "2000", "fixed by the protocol; batched renewals are cheap"},
	{"reclaim_scan_interval_ms", "", "5000", "gossip detects a dead owner long before"},
	{"suspect_recover_min_ms", "mesh.suspect_recover", "", "the recovery time of a formerly suspected member"},
	{"dead_recover_min_ms", "mesh.dead_recover", "", "the same for a formerly dead member"},
	{"gossip_sync_sample_size", "", "32", "members in one packet, fixed by the protocol so that a packet fits in a control frame"},
	{"mesh_prune_older_than_ms", "mesh.prune_age", "", "applies to liveness rows only"},
	{"mesh_prune_limit", "mesh.prune_limit", "", "rows removed in one pass"},
	{"mesh_prune_interval_ms", "mesh.prune_interval", "", "time between two passes"},
	{"pause_worker_when_local_not_alive", "", "true", "a node that considers itself isolated claims no new tasks of other homes (I16); as a home it goes on with the tasks of its own queues"},
	{"dedup window of 24 h", "", "–", "a fixed window lets tasks run twice: settled marks and the signed `not_after` replace it"},
	{"timeouts of 5, 10, 30, 60 s by class", "", "10m for a handler", "`timeout` of a handler; timeouts by class apply to mail and to the delivery acknowledgement"},
	{"flush of 100 ms or 100 records", "", "–", "commits are grouped without a delay: acknowledged means fsynced"},
	{"journal_mode, busy_timeout, foreign_keys", "", "–", "settings of SQLite, which is not used; the store's own settings are verified after opening"},
	{"α of the relay score", "net.score.bandwidth", "", "weight of the bandwidth"},
	{"β of the relay score", "net.score.latency", "", "weight of the inverse of the latency, since a higher latency must not score higher"},
	{"γ of the relay score", "net.score.loss", "", "weight of the loss, which is subtracted"},
	{"dispatch strategy (ordered, ROUND_ROBIN, priority, LOAD_BALANCE)", "", "least_loaded", "set with `queue set --strategy`, and for the readers of mail with `mailbox set` and `sub set`, also while they are in use"},
}
