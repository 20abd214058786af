// Package api is the API server of a node: programs on the same machine use it to submit
// tasks and to query the node, with HTTP and JSON over a unix socket.
//
//	curl, balefire-node, api/client
//	        │  HTTP over node.sock, mode 0660: whoever can open it can do anything
//	        ▼
//	  meter ─▶ body: bounded, one JSON value, no name twice ─▶ route ─▶ audit ─▶ node
//	                                                             │
//	        problem+json: code, detail, and what to do ◀─────────┘
//
// It promises four things. What it answers is what the node said: a 202 means
// that the task is on disk. Reading never changes anything: whatever writes is a
// POST, a PUT or a DELETE. Every command is in the audit log with its caller, before it
// is done and with its result, except submits, mail that is sent, leased or settled,
// boxes for replies, pings and progress. And every error, its own as well as the node's,
// is a [wire.Problem] with the next step in it.
//
// There is no access control but the mode of the socket, so [Server.Serve] refuses
// any other kind of listener. All routes are described in /openapi.json.
package api
