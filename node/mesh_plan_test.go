package node

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// A plan is the behavior of the handler of a simulated task, encoded in the body of the
// task.
type plan struct {
	takes   time.Duration
	fails   int // number of attempts that fail first
	refuses bool
	body    []byte

	key, order string
	ttl, delay time.Duration
	class      proto.Class
}

// newPlan creates the i-th task of a user.
func newPlan(rng *rand.Rand, i int) plan {
	p := plan{takes: time.Duration(rng.IntN(3000)) * time.Millisecond, class: proto.Class(1 + rng.IntN(4))}
	switch rng.IntN(20) {
	case 0:
		p.takes = time.Duration(rng.IntN(120)) * time.Second
	case 1:
		p.fails = 1 + rng.IntN(simAttempts)
	case 2:
		p.refuses = true
	case 3:
		p.ttl = time.Duration(10+rng.IntN(120)) * time.Second
	case 4:
		p.delay = time.Duration(rng.IntN(120)) * time.Second
	case 5, 6:
		p.order = fmt.Sprint("lane", rng.IntN(3))
	case 7:
		p.key = fmt.Sprint("key", i)
	}
	p.body = fmt.Appendf(nil, "%d %d %t %d;", p.takes, p.fails, p.refuses, rng.Uint64())
	if rng.IntN(60) == 0 {
		p.body = append(p.body, bytes.Repeat([]byte("."), 10_000+rng.IntN(500_000))...)
	}
	return p
}

// planOf decodes the body that a handler was given.
func planOf(body []byte) (p plan) {
	var salt uint64
	if _, err := fmt.Sscanf(string(body[:bytes.IndexByte(body, ';')]), "%d %d %t %d", &p.takes, &p.fails, &p.refuses, &salt); err != nil {
		panic(err) // the digest was checked before the handler saw it
	}
	p.body = body
	return p
}

func (p plan) request(target string) wire.Request {
	return wire.Request{Target: target, Kind: simKind, Body: p.body, Key: p.key, Order: p.order, TTL: wire.Duration(p.ttl), Delay: wire.Duration(p.delay), Class: p.class.Name()}
}

// answer returns the result of the task.
func (p plan) answer() []byte {
	sum := sha256.Sum256(p.body)
	return hex.AppendEncode(nil, sum[:])
}

// capture stores the frame that carries a task.
func (c *checker) capture(n *Node, ref string) {
	id, err := proto.ParseTaskID(ref)
	if err != nil {
		return
	}
	st, err := n.outbox.Stored(id)
	if err != nil || st.GetRecord().GetBodyBlob() != "" {
		return // it has ended, or its body is streamed
	}
	env := st.GetEnvelope()
	payload, err := proto.Encode(nil, &proto.Envelope{Header: env.Header, Body: env.Body, Slot: env.Slot, Path: env.Path, Index: env.Index})
	if err != nil {
		c.t.Error(err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entry(id).envelope = &proto.Message{Id: ref, Type: proto.TypeData, Payload: payload, Signature: env.Signature}
}
