package proto

import (
	"crypto/sha256"
	"fmt"
)

// Exceeded reports whether a result of size bytes is larger than the sender accepts.
func (o *TaskOptions) Exceeded(size uint64) bool {
	return o.GetMaxResult() > 0 && size > o.GetMaxResult()
}

// TooLarge reports whether the result of o is larger than its task accepts. If so, o
// becomes the end of a task whose target violated the limit, without that result.
func (o *Outcome) TooLarge(task *TaskOptions) bool {
	if !task.Exceeded(max(o.GetBodySize(), uint64(len(o.GetBody())))) {
		return false
	}
	sum := sha256.Sum256(nil)
	o.State, o.Cause = DeadLetter, TaskResultTooLarge
	o.Reason = fmt.Sprintf("%d bytes, the task takes %d (max_result)", o.GetBodySize(), task.GetMaxResult())
	o.Body, o.BodySize, o.BodyDigest, o.Object, o.ContentType, o.Truncated = nil, 0, sum[:], nil, "", false
	return true
}
