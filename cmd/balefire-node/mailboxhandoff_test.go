package main

import "testing"

func TestHandOffOfABox(t *testing.T) {
	runCases(t, []commandCase{
		{"mailbox handoff desk", exitUsage, "", "", "name the node that is to be the home of desk"},
		{"mailbox handoff --to beta", exitUsage, "", "", "the name of a mailbox"},
		{"mailbox handoff desk --to beta", exitOK, `POST /v1/mailboxes/desk/handoff {"to":"beta"}`, "agent:desk: handed off to beta, with 3 mails\n", ""},
		{"topic handoff orders --to beta", exitOK, `POST /v1/topics/topic:orders/handoff {"to":"beta"}`, "topic:orders: handed off to beta, with 3 mails\nbeta serves it as soon as it has heard that it is the home\n", ""},
		{"topic handoff orders --to beta -o json", exitOK, `POST /v1/topics/topic:orders/handoff {"to":"beta"}`, "*", ""},
	})
}
