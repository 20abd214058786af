package inbox

import (
	"time"

	"github.com/balefire/balefire/proto"
)

// An Arrival is a received task. Its form, mesh, membership and signature are checked, and
// its body is opened. Accept keeps parts of it; the caller must not change it afterwards.
type Arrival struct {
	Header   proto.Header
	Content  *proto.Content
	Envelope *proto.Envelope // as it was signed; kept until the task has ended
	Key      [32]byte        // the content key, for a streamed body
	Digest   [32]byte        // of what was signed: distinguishes a copy from another task with the same id
	Ahead    time.Duration   // how far the clock of its origin, which dated it, is ahead of this node's
}

// NotAfter returns when the time of the task ends, by this node's clock, in Unix
// milliseconds.
func (a *Arrival) NotAfter() int64 { return a.here(a.Header.NotAfter) }

// NotBefore returns when the task may start, by this node's clock, in Unix milliseconds;
// 0: at once.
func (a *Arrival) NotBefore() int64 {
	if a.Content.GetNotBeforeMs() == 0 {
		return 0
	}
	return a.here(a.Content.GetNotBeforeMs())
}

// here converts a time of the origin's clock.
func (a *Arrival) here(ms int64) int64 { return ms - a.Ahead.Milliseconds() }

// A Verdict answers an arrival or a cancel. Code 0 means that what was requested is durable
// here.
type Verdict struct {
	Code       proto.Code
	Detail     string          // for display
	State      proto.TaskState // of a known task
	RetryAfter time.Duration   // 0: the sender decides
	Unknown    error           // why it is not known whether the task is here: nobody is told that it is not
}

// Accepted reports whether the task is in custody here.
func (v Verdict) Accepted() bool { return v.Code == proto.CodeOK }

func refuse(code proto.Code, detail string) Verdict { return Verdict{Code: code, Detail: detail} }

// initial returns an arrival as it is stored. body is the name of the file with its body, if
// the body is not in the record.
func (a *Arrival) initial(body string, cfg *Config) *fresh {
	now := cfg.Clock.Now()
	c, h := a.Content, &a.Header
	f := &fresh{content: c, origin: h.Origin, key: a.Key, digest: a.Digest}
	st, r := &f.stored, &f.record
	st.Envelope, st.Record, st.Key = a.Envelope, r, f.key[:]
	r.Class, r.Kind, r.Mode, r.Keeper = c.Class, c.Kind, c.Mode, uint32(keeperFor(c))
	r.Peer, r.BootId = f.origin[:], cfg.BootID[:bootMark]
	r.SeqBoot, r.SeqCounter = h.Seq.Boot, h.Seq.Counter
	r.CreatedMs, r.NotAfterMs = a.here(h.Created), a.NotAfter()
	r.StampMachine = cfg.Clock.MachineMark(cfg.BootID[:])
	r.StampBootMs = cfg.Clock.Boot().Milliseconds() - (now.UnixMilli() - r.CreatedMs)
	r.IdempotencyKey, r.OrderingKey = c.IdempotencyKey, c.OrderingKey
	r.BodySize, r.Options = c.BodySize, c.Options
	r.RequestDigest = f.digest[:]
	r.Traceparent = c.Traceparent
	if c.Queue != "" {
		r.Queue, r.OnDead, r.DueMs = c.Queue, c.OnDead, a.NotBefore()
	}
	r.BodyBlob = body
	if a.offloaded() {
		e := a.Envelope
		st.Envelope = &proto.Envelope{Header: e.Header, Slot: e.Slot, Path: e.Path, Index: e.Index, Signature: e.Signature}
	}
	r.Move(proto.Accepted, now, 0, "")
	return f
}

// streamed reports whether the body is transferred as a stream.
func (a *Arrival) streamed() bool { return a.Header.Streamed() }

// offloaded reports whether the sealed body is too large for a record. The content of a
// streamed task is not offloaded: its file is the stream.
func (a *Arrival) offloaded() bool {
	return !a.streamed() && len(a.Envelope.GetBody()) > proto.MaxSealedRecord
}

// MaxStreamContent is the largest sealed content of a task whose body is a stream. With
// everything that its record may ever contain it still fits into one value of the store: a
// task whose record can no longer be written would never end.
const MaxStreamContent = 32 << 10

// oversized reports whether the content of a streamed task is too large for its record.
func (a *Arrival) oversized() bool {
	return a.streamed() && len(a.Envelope.GetBody()) > MaxStreamContent
}
