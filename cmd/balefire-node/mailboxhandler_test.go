package main

import "testing"

// A flag changes its own setting of a handler and no other, also to the default; only an empty
// --exec or --post removes the handler.
func TestMailboxHandler(t *testing.T) {
	const (
		raw  = "GET /v1/mailboxes/raw; PUT /v1/mailboxes/raw "
		hook = "GET /v1/mailboxes/hook; PUT /v1/mailboxes/hook "
		ceo  = "GET /v1/mailboxes/ceo"
		add  = "GET /v1/mailboxes/new1"
	)
	runCases(t, []commandCase{
		{"mailbox set raw --forward ''", exitOK, raw + `{"handler":{"exec":["/bin/v1","-x"],"concurrency":4,"timeout":"1h","profile":"read-only","env":["HOME","KEY"],"run_as":"nobody","dir":"/srv"}}`, "*", "changed"},
		{"mailbox set raw --run-timeout 0", exitOK, raw + `{"handler":{"exec":["/bin/v1","-x"],"forward":"agent:desk","concurrency":4,"profile":"read-only","env":["HOME","KEY"],"run_as":"nobody","dir":"/srv"}}`, "*", ""},
		{"mailbox set raw --profile '' --env '' --run-as '' --work-dir ''", exitOK, raw + `{"handler":{"exec":["/bin/v1","-x"],"forward":"agent:desk","concurrency":4,"timeout":"1h"}}`, "*", ""},
		{"mailbox set raw --forward agent:next --concurrency 2 --run-timeout 5m --profile dev-write --env A --run-as me --work-dir /tmp", exitOK,
			raw + `{"handler":{"exec":["/bin/v1","-x"],"forward":"agent:next","concurrency":2,"timeout":"5m","profile":"dev-write","env":["A"],"run_as":"me","dir":"/tmp"}}`, "*", ""},
		{"mailbox set raw --exec v2 two", exitOK, raw + `{"handler":{"exec":["v2","two"],"forward":"agent:desk","concurrency":4,"timeout":"1h","profile":"read-only","env":["HOME","KEY"],"run_as":"nobody","dir":"/srv"}}`, "*", ""},
		{"mailbox set raw --post http://x/", exitOK, raw + `{"handler":{"post":"http://x/","forward":"agent:desk","concurrency":4,"timeout":"1h"}}`, "*", "agent:raw@here: dropped --profile, --env, --run-as, --work-dir, which only programs have"},
		{"mailbox set hook --exec v2 --env A", exitOK, hook + `{"handler":{"exec":["v2"],"forward":"agent:desk","concurrency":4,"env":["A"]}}`, "*", ""},
		{"mailbox set hook --post http://y/", exitOK, hook + `{"handler":{"post":"http://y/","forward":"agent:desk","concurrency":4}}`, "*", ""},
		{"mailbox set raw --exec ''", exitOK, raw + `{"handler":{}}`, "*", ""},
		{"mailbox set raw --post '' --attempts 5", exitOK, raw + `{"handler":{},"attempts":5}`, "*", ""},
		{"mailbox set raw --attempts 5", exitOK, raw + `{"attempts":5}`, "*", ""},
		{"mailbox set raw --exec '' --forward agent:next", exitUsage, "", "", "an empty --exec or --post removes the handler: leave out --forward"},
		{"mailbox set raw two", exitUsage, "", "", "arguments of a program need --exec"},
		{"mailbox set ceo --forward ''", exitUsage, ceo, "", "give --exec or --post, too"},
		{"mailbox add new1 --run-timeout 0", exitUsage, add, "", "give --exec or --post, too"},
		{"mailbox add new1 --exec v1 --forward agent:desk", exitOK, add + `; PUT /v1/mailboxes/new1 {"handler":{"exec":["v1"],"forward":"agent:desk"}}`, "*", "created"},
	})
}
