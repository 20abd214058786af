package wire

import "time"

// A Status summarizes this node.
type Status struct {
	Name     string         `json:"name"`
	ID       string         `json:"id"`
	Mesh     string         `json:"mesh"`
	Version  string         `json:"version"`
	Started  time.Time      `json:"started"`
	Store    StoreStats     `json:"store"`
	Addrs    []string       `json:"addrs"`
	Warnings []Note         `json:"warnings" doc:"what an operator should look at"`
	Peers    []Peer         `json:"peers"`
	Outbox   map[string]int `json:"outbox" doc:"tasks whose home is this node, by state"`
	Inbox    map[string]int `json:"inbox" doc:"tasks accepted by this node, by state"`
	Results  int            `json:"results" doc:"results being sent to their homes"`
	Dead     int            `json:"dead_letters"`
	Slots    int            `json:"slots"`
	Busy     int            `json:"busy"`
	Mail     *MailStatus    `json:"mail,omitempty" doc:"absent: its ledger does not answer"`
}

// A MailStatus counts the mail of this node that may need somebody.
type MailStatus struct {
	Outgoing int      `json:"outgoing" doc:"mails that wait for boxes on other nodes"`
	Dead     int      `json:"dead_letters" doc:"of all mailboxes and subscriptions"`
	DeadIn   []string `json:"dead_in,omitempty" doc:"some of those that have dead letters, at most ten"`

	RemoteReaders int `json:"remote_readers" doc:"sessions of other nodes at the boxes of this one"`
}

// StoreStats describes the store. Sizes are bytes.
type StoreStats struct {
	Engine      string   `json:"engine"`
	Schema      int      `json:"schema"`
	DiskBytes   int64    `json:"disk_bytes"`
	LiveBytes   int64    `json:"live_bytes"`
	Keys        int64    `json:"keys"`
	BlobBytes   int64    `json:"blob_bytes"`
	LedgerBytes int64    `json:"ledger_bytes" doc:"in which mail is kept; 0: this node never had a mailbox or topic"`
	FreeBytes   int64    `json:"free_bytes"`
	Reserve     int64    `json:"reserve_bytes"`
	Full        bool     `json:"full" doc:"new work is refused"`
	Refuses     NoteCode `json:"refuses,omitempty" enum:"disk_full,memory_full" doc:"why new work is refused"`
	Commits     int64    `json:"commits"`
	Failed      string   `json:"failed,omitempty"`
}

// A Blocker is the reason why a task does not make its next step, or why a peer or a
// queue does not get its tasks.
type Blocker struct {
	Subject string     `json:"subject" doc:"a task's id, a peer's name, or queue:NAME"`
	State   string     `json:"state"`
	Cause   Note       `json:"cause"`
	Next    *time.Time `json:"next,omitempty" doc:"time of the next automatic retry"`
	Steps   []Note     `json:"steps" doc:"what was checked, in order"`
}

// Health is the response of a healthy or ready node.
type Health struct {
	Status string `json:"status" enum:"ok"`
}

// A Snapshot is the location of a copy of the store.
type Snapshot struct {
	Dir   string `json:"dir" minLength:"1" doc:"absolute path of a new folder on the node's machine; with to_key of a new file"`
	ToKey string `json:"to_key,omitempty" doc:"public key, age1…: encrypt the copy to this key"`
}
