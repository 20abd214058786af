package outbox

import (
	"sort"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
	"github.com/balefire/balefire/wire"
)

// tellAfter is how many transient refusals in a row are reported to a person.
const tellAfter = 10

// resultKey returns the key of the result of a task that ran here.
func resultKey(id proto.TaskID) backlog.Key {
	return backlog.Key{ID: id, Part: backlog.PartResult}
}

// Result returns the record of the result of a task that ran here, either on its
// way to its home or a dead letter; ErrNotFound if there is none.
func (o *Outbox) Result(id proto.TaskID) (*proto.Record, error) {
	r, _, err := o.backlog.Get(resultKey(id))
	if err == nil && r.Cause == 0 {
		r.Cause = proto.TaskResultWaits
	}
	return r, err
}

// WhyResult explains what the result of a task that ran here is waiting for.
func (o *Outbox) WhyResult(id proto.TaskID) (Why, error) {
	r, err := o.Result(id)
	if err != nil {
		return Why{}, err
	}
	return o.why(resultKey(id), r), nil
}

// A RefusedResult is a result that its home refuses repeatedly, or for a reason
// that is not transient.
type RefusedResult struct {
	ID     proto.TaskID
	Home   proto.PeerID
	Code   proto.Code
	Detail string
}

// RefusedResults returns refused results in the order of their ids, at most limit
// of them, and how many there are.
func (o *Outbox) RefusedResults(limit int) (list []RefusedResult, count int) {
	for k, n := range o.deliveries.refusedResults() {
		list = append(list, RefusedResult{ID: k.ID, Code: n.code, Detail: n.detail})
	}
	sort.Slice(list, func(i, j int) bool { return list[i].ID.Compare(list[j].ID) < 0 })
	count = len(list)
	list = list[:min(limit, count)]
	for i := range list {
		if r, err := o.Result(list[i].ID); err == nil {
			list[i].Home, _ = proto.PeerIDFrom(r.GetPeer())
		}
	}
	return list, count
}

// refusedResults returns the delivery states of refused results that are reported
// to a person.
func (n *deliveryStates) refusedResults() map[backlog.Key]deliveryState {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := map[backlog.Key]deliveryState{}
	for k, p := range n.all {
		if _, ends := p.code.Ends(); k.Part == backlog.PartResult && (ends || p.code != 0 && p.tries >= tellAfter) {
			out[k] = *p
		}
	}
	return out
}

// resultRefused reports a refused result: once for each reason that is not
// transient, once for a transient reason that lasts, and when the result becomes
// a dead letter.
func (o *Outbox) resultRefused(k backlog.Key, home proto.PeerID, r *proto.Refusal, before, now deliveryState, over bool) {
	if k.Part != backlog.PartResult {
		return
	}
	lasts := false // and this was not reported; broken links count as tries too
	if !over && now.tries >= tellAfter {
		o.note(k, func(n *deliveryState) { lasts, n.reported = !n.reported, true })
	}
	if _, ends := r.GetCode().Ends(); !over && !lasts && !(ends && before.code != r.GetCode()) {
		return
	}
	kind, what := wire.EventResultRefused, "the home of a task refuses its result; will retry"
	if over {
		kind, what = wire.EventResultDead, "the home of a task permanently refuses its result; it is kept as a dead letter"
	}
	o.cfg.Logger.Warn(what, "task", k.ID.String(), "home", home, "code", r.GetCode().Name(), "detail", r.GetDetail())
	o.resultEvent(kind, k.ID, home, proto.TaskRefused, r.GetCode(), r.GetDetail())
}

// resultExpired reports a result that its home did not accept in time.
func (o *Outbox) resultExpired(k backlog.Key, r *proto.Record) {
	home, _ := proto.PeerIDFrom(r.Peer)
	o.deliveries.drop(k)
	o.cfg.Logger.Warn("a result did not reach its home in time; it is kept as a dead letter", "task", k.ID.String(), "home", home, "cause", r.Cause.Name(), "code", r.Code.Name(), "detail", r.Reason)
	o.resultEvent(wire.EventResultDead, k.ID, home, r.GetCause(), r.GetCode(), r.GetReason())
}

// resultStale reports a result that its home recorded but did not count.
func (o *Outbox) resultStale(k backlog.Key, home proto.PeerID, r *proto.Refusal) {
	if k.Part != backlog.PartResult || r.GetCode() != proto.CodeStale {
		return
	}
	o.cfg.Logger.Warn("the home of a task does not need its result", "task", k.ID.String(), "home", home, "state", r.GetState().Name(), "detail", r.GetDetail())
	o.resultEvent(wire.EventResultStale, k.ID, home, proto.TaskRefused, r.GetCode(), r.GetDetail())
}

func (o *Outbox) resultEvent(kind string, id proto.TaskID, home proto.PeerID, cause proto.TaskCause, code proto.Code, detail string) {
	fields := map[string]string{"task": id.String(), "cause": cause.Name(), "detail": detail}
	if code != proto.CodeOK {
		fields["code"] = code.Name()
	}
	o.cfg.Event(kind, home, fields)
}
