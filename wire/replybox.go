package wire

import (
	"cmp"
	"encoding/base32"
	"fmt"
	"strings"
)

const replyPrefix = "reply-"

var replyCode = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// ReplyBoxName returns the name of the mailbox for replies that has a secret.
func ReplyBoxName(secret [16]byte) string { return replyPrefix + replyCode.EncodeToString(secret[:]) }

// IsReplyBox reports whether NAME, agent:NAME or agent:NAME@NODE is a box for replies.
func IsReplyBox(box string) bool {
	name, _, _ := strings.Cut(strings.TrimPrefix(box, "agent:"), "@")
	text, ok := strings.CutPrefix(name, replyPrefix)
	secret, err := replyCode.DecodeString(text)
	return ok && err == nil && len(secret) == 16 && replyCode.EncodeToString(secret) == text
}

// AsReplyTo makes m the reply to a mail. The class, the ordering key, the trace and the correlation
// are those of the mail, where m has none; the correlation of a mail without one is its id. Without a dedupe
// key m gets one that is the same for each reply to the mail, so that only one is sent. A reply to a box for
// replies gets none, because the first one counts there.
func (m *Mail) AsReplyTo(to *ReceivedMail) error {
	if to.ReplyTo == "" {
		return fmt.Errorf("mail %s names no box for replies", to.ID)
	}
	m.To, m.Hops = to.ReplyTo, to.Hops+1
	m.Class, m.Key, m.Trace = cmp.Or(m.Class, to.Class), cmp.Or(m.Key, to.Key), cmp.Or(m.Trace, to.Trace)
	m.Correlation = cmp.Or(m.Correlation, to.Correlation, to.ID)
	if !IsReplyBox(m.To) {
		m.Dedupe = cmp.Or(m.Dedupe, "reply:"+to.ID)
	}
	return nil
}
