package main

import (
	"testing"
)

// TestMailRequests checks that a request prints the body of its reply, and that the exit code
// tells no reply from a mail that was not delivered.
func TestMailRequests(t *testing.T) {
	reply := func(id string) string { return "GET /v1/mail/" + id + "/reply?wait=1m0s" }
	runCases(t, []commandCase{
		{"mail send agent:ceo@laptop hi --dedupe d --wait 30s --reply-from peer:laptop", exitOK,
			`POST /v1/mail/request {"to":"agent:ceo@laptop","dedupe":"d","body":"aGk=","reply_from":["peer:laptop"]}; ` + reply(testMailID), "five\n", "mail " + testMailID + " for agent:ceo@here: waiting for the reply"},
		{"mail send agent:gone@laptop --dedupe d --wait 30s", exitFailed, `POST /v1/mail/request {"to":"agent:gone@laptop","dedupe":"d"}`, "", "not delivered: mail is DEAD"},
		{"mail send agent:ceo@laptop --wait 0s", exitUsage, "", "", "say how long"},
		{"mail send agent:ceo@laptop --wait 1s --reply-to agent:ceo", exitUsage, "", "", "wait"},
		{"mail await " + testMailID, exitOK, reply(testMailID), "five\n", "reply from laptop"},
		{"mail await " + testMailID + " -o json", exitOK, reply(testMailID), "*", ""},
		{"mail await 01a40", exitFailed, reply("01a40"), "", "mail 01a40 is DEAD: final: no such order"},
		{"mail await 01a30 --wait 10ms", exitTimeout, "*", "", "no reply to mail 01a30 came within 10ms"},
		{"mail await nothing", exitUsage, "", "", "is not the id of a mail"},
		{"mail await 01a30 --wait -1s", exitUsage, "", "", "it must be positive"},
	})
}

// The waits of mail have the units of all other durations, --timeout ends them, and a flag that
// counts only with another one is refused without it.
func TestWaitsOfMail(t *testing.T) {
	reply := func(id string) string { return "GET /v1/mail/" + id + "/reply?wait=1m0s" }
	runCases(t, []commandCase{
		{"mail await " + testMailID + " --wait 1d", exitOK, reply(testMailID), "five\n", ""},
		{"mail send agent:ceo@laptop hi --reply-from peer:laptop", exitUsage, "", "", "--reply-from goes with --wait"},
	})
	t.Run("--timeout", func(t *testing.T) {
		code, _, errs := command(t, newMailNode(), "mail", "await", "01a30", "--wait", "1h", "--timeout", "100ms")
		if code != exitTimeout {
			t.Errorf("%d: %s", code, errs)
		}
	})
}
