package proto

import (
	"crypto/sha256"
	"fmt"
)

// TooLarge reports whether the result of o is larger than its task accepts. If so, o
// becomes the end of a task whose target violated the limit, without that result. A max of
// 0 means no limit.
func (o *Outcome) TooLarge(max uint64) bool {
	if max == 0 || o.GetBodySize() <= max && uint64(len(o.GetBody())) <= max {
		return false
	}
	sum := sha256.Sum256(nil)
	o.State = DeadLetter
	o.Reason = fmt.Sprintf("TOO_LARGE: its target sent a result of %d bytes, the task takes %d (max_result)", o.GetBodySize(), max)
	o.Body, o.BodySize, o.BodyDigest, o.Object, o.ContentType, o.Truncated = nil, 0, sum[:], nil, "", false
	return true
}
