package wire

import (
	"encoding/base32"
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
