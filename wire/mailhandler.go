package wire

import (
	"encoding/json"
	"strconv"
	"strings"
)

// A MailHandler is what a node does with the mail of a mailbox: it runs a program for each, or
// posts each to a URL. Without either there is no handler.
type MailHandler struct {
	Exec        []string `json:"exec,omitempty" maxItems:"64" doc:"program and its arguments, never a shell line: exit code 0 acknowledges the mail, 65 makes it a dead letter, 75 and all others give it back"`
	Post        string   `json:"post,omitempty" maxLength:"1024" doc:"http or https URL: an answer 2xx acknowledges the mail, 429 and 5xx give it back, another 4xx makes it a dead letter"`
	Forward     string   `json:"forward,omitempty" maxLength:"192" doc:"mailbox or topic that gets the mail with the output as its body; the mail is acknowledged in the same write"`
	Concurrency int      `json:"concurrency,omitempty" minimum:"0" maximum:"256" doc:"mails at once; default 1"`
	Timeout     Duration `json:"timeout,omitempty" doc:"of one mail, at most 12h; default 10m"`
	Profile     string   `json:"profile,omitempty" enum:"read-only,dev-write,dangerous" doc:"default dev-write; dangerous needs the name of the mailbox under dangerous in the configuration of the node"`
	Env         []string `json:"env,omitempty" maxItems:"64" doc:"names of the node's environment variables that the program gets, or NAME=VALUE"`
	RunAs       string   `json:"run_as,omitempty" maxLength:"128" doc:"USER or USER:GROUP that the program runs as"`
	Dir         string   `json:"dir,omitempty" maxLength:"1024" doc:"working folder; default a new one for each run"`
}

// Env returns the environment variables that describe a delivery to a program.
func (d *DeliveredMail) Env() map[string]string {
	m, labels := &d.Mail, ""
	if len(m.Labels) > 0 {
		if text, err := json.Marshal(m.Labels); err == nil { // a map of strings
			labels = string(text)
		}
	}
	key := m.FirstID
	if key == "" {
		key = m.ID
	}
	_, epoch, _ := strings.Cut(d.Lease, ".")
	return map[string]string{
		"BALEFIRE_MAIL_ID": m.ID, "BALEFIRE_BOX": m.Box, "BALEFIRE_ATTEMPT": strconv.Itoa(d.Attempt), "BALEFIRE_EPOCH": epoch, "BALEFIRE_IDEMPOTENCY_KEY": key,
		"BALEFIRE_FROM": m.From, "BALEFIRE_ORIGIN": m.FromID, "BALEFIRE_SENDER": m.Sender, "BALEFIRE_CLASS": m.Class, "BALEFIRE_KEY": m.Key, "BALEFIRE_SUBJECT": m.Subject,
		"BALEFIRE_TYPE": m.Type, "BALEFIRE_CONTENT_TYPE": m.ContentType, "BALEFIRE_REPLY_TO": m.ReplyTo, "BALEFIRE_CORRELATION": m.Correlation,
		"BALEFIRE_HOPS": strconv.Itoa(m.Hops), "BALEFIRE_LABELS": labels, "TRACEPARENT": m.Trace,
	}
}
