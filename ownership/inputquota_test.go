package ownership

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/balefire/balefire/proto"
)

// A member that sends more than the driver can handle does not keep out others or this node
// itself.
func TestOneMemberCannotFillTheInputs(t *testing.T) {
	v := newVictim(t)
	say := func(from proto.PeerID, body proto.Body) { t.Helper(); v.mustReceive(from, proto.TypeRenew, body) }
	flood := func() {
		for range 2 * maxInputs {
			say(vFar, &proto.Renew{})
		}
	}
	flood()
	waits := len(v.driver.inputs)
	if say(vOwner, &proto.Renew{}); len(v.driver.inputs) != waits+1 {
		t.Fatalf("%d messages of one member wait, and none of another is taken", waits)
	}
	if v.driver.SetActive(true); len(v.driver.inputs) != waits+2 {
		t.Error("a request of this node is not accepted")
	}
	for len(v.driver.inputs) > 0 {
		(<-v.driver.inputs)()
	}
	if n := len(v.driver.quota.byPeer); n != 0 {
		t.Errorf("when nothing waits, something of %d members is counted", n)
	}
	if flood(); len(v.driver.inputs) != waits {
		t.Errorf("%d inputs wait after the driver was idle, and %d did before", len(v.driver.inputs), waits)
	}
}

// What waits of one member is bounded in bytes, and less than may wait in all; a grant that is
// not taken waits without its envelope.
func TestInputsAreBoundedInBytes(t *testing.T) {
	v := newVictim(t)
	v.code = proto.CodeBusy
	large := &proto.Grant{Claim: v.given(), Queue: "far", Envelope: &proto.Envelope{Body: make([]byte, 300<<10)}}
	if v.mustReceive(vFar, proto.TypeGrant, large); v.driver.quota.bytes == 0 || v.driver.quota.bytes > 1000 {
		t.Errorf("a grant that is not taken keeps %d bytes", v.driver.quota.bytes)
	}
	v.code = proto.CodeOK
	for i, from := range []proto.PeerID{vFar, vOther} {
		for range maxInputBytes / (300 << 10) {
			v.mustReceive(from, proto.TypeGrant, large)
		}
		if got := v.driver.quota.byPeer[from].bytes; got > maxInputBytes>>(i+1)+400<<10 || got < maxInputBytes>>(i+1)-400<<10 {
			t.Errorf("%d bytes of member %d wait", got, i)
		}
	}
	for len(v.driver.inputs) > 0 {
		(<-v.driver.inputs)()
	}
	if q := &v.driver.quota; q.bytes != 0 || len(q.byPeer) != 0 {
		t.Errorf("when nothing waits, %d bytes of %d members are counted", q.bytes, len(q.byPeer))
	}
}

// mustReceive gives a message to the driver, which leaves it in its inputs.
func (v *victim) mustReceive(from proto.PeerID, typ proto.MessageType, body proto.Body) {
	v.t.Helper()
	payload, err := proto.Encode(nil, body)
	if err == nil {
		err = v.driver.Receive(from, &proto.Message{Type: typ, Payload: payload})
	}
	if err != nil {
		v.t.Fatal(err)
	}
}

// A caller that gives up before the driver has answered does not see the result. If it reads
// what the driver still writes, the race detector finds that.
func TestACallerThatGivesUpReadsNothing(t *testing.T) {
	v := newVictim(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	id := v.task
	for name, call := range map[string]func(context.Context) error{
		"Leases":  func(ctx context.Context) error { _, err := v.driver.Leases(ctx, nil, 10); return err },
		"Counts":  func(ctx context.Context) error { _, err := v.driver.Counts(ctx); return err },
		"Queue":   func(ctx context.Context) error { _, err := v.driver.Queue(ctx, "q"); return err },
		"Task":    func(ctx context.Context) error { _, _, err := v.driver.Task(ctx, id); return err },
		"Past":    func(ctx context.Context) error { _, _, err := v.driver.FormerTask(ctx, proto.TaskID{9}); return err },
		"Cancel":  func(ctx context.Context) error { _, err := v.driver.Cancel(ctx, proto.TaskID{9}, false); return err },
		"Reclass": func(ctx context.Context) error { _, err := v.driver.SetClass(ctx, id, proto.High); return err },
		"Unblock": func(ctx context.Context) error { _, err := v.driver.Unblock(ctx, "q", "k"); return err },
		"Recover": func(ctx context.Context) error { _, err := v.driver.Recover(ctx, proto.TaskID{9}); return err },
		"Seize":   func(ctx context.Context) error { return v.driver.Seize(ctx, "far", vFar) },
		"HandOff": func(ctx context.Context) error { return v.driver.HandOff(ctx, "none", vFar) },
		"Set": func(ctx context.Context) error {
			return v.driver.CreateQueue(ctx, "far", nil, func(*proto.QueueState) {})
		},
		"Pace": func(ctx context.Context) error { _, err := v.driver.Progress(ctx, id); return err },
	} {
		t.Run(name, func(t *testing.T) {
			var driver sync.WaitGroup
			driver.Go(func() { (<-v.driver.inputs)() }) // as the driver does, concurrently with the caller
			for tried := 0; tried < 64; tried++ {       // a context that is done may be seen before the driver is
				if err := call(ctx); !errors.Is(err, context.Canceled) {
					t.Errorf("it returned %v", err)
				}
			}
			driver.Wait()
			for len(v.driver.inputs) > 0 {
				(<-v.driver.inputs)()
			}
		})
	}
}
