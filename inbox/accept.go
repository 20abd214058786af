package inbox

import (
	"context"
	"errors"
	"slices"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/backlog"
)

// Accept takes custody of the arrivals, in as few commits as possible, and answers each.
// What it accepts is on disk when it returns (I8). It writes one record for each task and
// reads nothing.
func (in *Inbox) Accept(ctx context.Context, arrivals []Arrival) []Verdict {
	verdicts := make([]Verdict, len(arrivals))
	undecided := make([]int, len(arrivals))
	for i := range undecided {
		undecided[i] = i
	}
	for len(undecided) > 0 {
		g := &acceptGroup{commit: &commitGroup{done: make(chan struct{})}}
		others := in.classify(arrivals, verdicts, undecided, g)
		in.commit(ctx, arrivals, verdicts, g)
		undecided = g.later
		for _, cg := range others {
			select {
			case <-cg.done:
			case <-ctx.Done():
				for _, i := range undecided {
					verdicts[i] = refuse(proto.CodeInternal, "the node stopped before it could check the task")
					verdicts[i].Unknown = ctx.Err()
				}
				return verdicts
			}
		}
	}
	return verdicts
}

// An acceptGroup is the set of arrivals that one commit writes.
type acceptGroup struct {
	commit    *commitGroup
	take      []int // arrivals to write
	later     []int // copies of what is being written: checked again afterwards
	cancelled []int // of take: cancelled before they arrived
}

// Preview answers an arrival as Accept would and takes no custody of it: accepted means that
// its home may send it now.
func (in *Inbox) Preview(a *Arrival) Verdict {
	input, grants := in.acceptInput(), allowCache{in: in}
	in.dedup.mu.Lock()
	defer in.dedup.mu.Unlock()
	if in.dedup.lookUp(a, &input) != nil || in.Err() != nil {
		return Verdict{} // a copy is being written, or was: whoever sends the task learns what became of that
	}
	return in.judge(a, &input, &grants)
}

// classify decides about the undecided arrivals and puts those to be written, or to be
// checked again later, into g. It returns the commits to wait for.
func (in *Inbox) classify(arrivals []Arrival, verdicts []Verdict, undecided []int, g *acceptGroup) (others []*commitGroup) {
	input, grants := in.acceptInput(), allowCache{in: in}
	g.take = make([]int, 0, len(undecided))
	idx := in.dedup
	idx.mu.Lock()
	defer idx.mu.Unlock()
	for _, i := range undecided {
		a := &arrivals[i]
		if cg := idx.lookUp(a, &input); cg != nil {
			g.later = append(g.later, i)
			if cg != g.commit {
				others = append(others, cg)
			}
			continue
		}
		if verdicts[i] = in.judge(a, &input, &grants); !verdicts[i].Accepted() || input.idStatus == idDuplicate {
			continue
		}
		idx.startCommit(a, g.commit)
		g.take = append(g.take, i)
		if a.mayKeepKey() {
			in.keys.Reserve(string(a.Header.Origin[:])) // until its task has ended: see keyEnded
		}
		if input.idStatus == idCancelled {
			g.cancelled = append(g.cancelled, i)
		}
	}
	return others
}

// acceptInput returns the part of the input that is the same for all arrivals of a moment.
func (in *Inbox) acceptInput() acceptInput {
	return acceptInput{wallTime: wallTime{in.nowMs(), in.cfg.Clock.Doubted()}, stopping: in.slots.halted()}
}

// judge decides about an arrival whose status is in input. The caller holds dedup.mu.
func (in *Inbox) judge(a *Arrival, input *acceptInput, grants *allowCache) Verdict {
	input.seq, input.notAfter = a.Header.Seq, a.NotAfter()
	input.restored = in.restored > 0 && a.here(a.Header.Created) <= in.restored
	input.full = in.dedup.sizeLocked() >= in.cfg.MaxKept
	input.overShare = !in.dedup.hasShare(a, in.cfg.MaxKept, in.cfg.MaxTasks, in.cfg.MaxBytes)
	input.keysFull, input.keysOverShare = in.keysFull(a)
	input.queue = nil
	if input.idStatus == idNew {
		input.queue = in.admit(a)
	}
	if input.idStatus == idNew && input.queue == nil {
		input.handled, input.allowed, input.tooLarge, input.refused = grants.check(a)
		input.absent = in.handlers.suspendedReason(a.Content.Kind)
	}
	input.oversize = a.oversized()
	mayTake := input.idStatus == idCancelled || input.idStatus == idNew && (input.queue != nil || input.allowed)
	input.noBody = mayTake && a.streamed() && !in.hasBody(a.Header.ObjectFile())
	return input.verdict()
}

// keysFull reports whether there is no place left to remember the key of an arrival, or its
// origin has used up its share. A key whose success is stored already needs no place.
func (in *Inbox) keysFull(a *Arrival) (full, overShare bool) {
	if !a.mayKeepKey() {
		return false, false
	}
	full, overShare = in.keys.Full(), !in.keys.WithinShare(string(a.Header.Origin[:]))
	if !full && !overShare {
		return false, false
	}
	if _, err := in.keys.Get(successKey(a.Header.Origin, a.Content.IdempotencyKey)); err == nil {
		return false, false
	}
	return full, overShare
}

// mayKeepKey reports whether a success of its key may be stored here. Tasks of a queue run
// elsewhere, so their keys are not.
func (a *Arrival) mayKeepKey() bool {
	return a.Content.GetIdempotencyKey() != "" && keeperFor(a.Content) == KeeperSlot
}

// allowCache caches the last answer of the allow list: most groups have one origin and one
// kind.
type allowCache struct {
	in      *Inbox
	asked   bool
	origin  proto.PeerID
	kind    string
	h       *registration
	allowed bool
}

func (cache *allowCache) check(a *Arrival) (handled, allowed, tooLarge bool, refused string) {
	if !cache.asked || cache.origin != a.Header.Origin || cache.kind != a.Content.Kind {
		cache.asked, cache.origin, cache.kind = true, a.Header.Origin, a.Content.Kind
		cache.h = cache.in.handlers.find(cache.kind)
		cache.allowed = cache.h != nil && cache.h.allows(cache.origin, cache.in.parts.Members)
	}
	if cache.h == nil {
		return false, false, false, ""
	}
	if h, ok := cache.h.Handler.(handler.Admitter); ok && cache.allowed {
		if err := h.Admit(a.Content); err != nil {
			refused = err.Error()
		}
	}
	return true, cache.allowed, cache.h.MaxBody > 0 && a.Content.BodySize > cache.h.MaxBody, refused
}

// commit writes the arrivals in g.take and sets their verdicts.
func (in *Inbox) commit(ctx context.Context, arrivals []Arrival, verdicts []Verdict, g *acceptGroup) {
	if len(g.take) == 0 {
		in.dedup.finishCommit(g.commit, arrivals, nil, nil)
		return
	}
	added := make([]backlog.NewEntry, len(g.take))
	records := make([]*proto.Record, len(g.take))
	errs := make([]error, len(g.take))
	for n, i := range g.take {
		a := &arrivals[i]
		var body string
		if errs[n] = in.cfg.Fail(PointAccept); errs[n] == nil {
			body, errs[n] = in.pinBody(a)
		}
		if body != "" {
			defer in.parts.Bodies.Release(body)
		}
		f := a.initial(body, &in.cfg)
		r := &f.record
		if r.OrderingKey != "" && keeperOf(r) == KeeperSlot {
			h := in.handlers.find(r.Kind)
			r.SharedLane = h != nil && h.SharedLanes
		}
		records[n], added[n] = r, backlog.NewEntry{Key: backlog.TaskKey(a.Header.ID), Stored: &f.stored}
		if _, exists := in.queue.Peek(added[n].Key); !exists && keeperOf(r) == KeeperSlot && body == "" {
			in.fresh.put(added[n].Key, f)
		}
		if slices.Contains(g.cancelled, i) {
			done := in.replaceTombstone(&added[n])
			defer done()
		}
	}
	if errors.Join(errs...) == nil {
		errs = in.queue.Add(ctx, added)
	} else {
		in.addSome(ctx, added, errs)
	}
	in.dedup.finishCommit(g.commit, arrivals, g.take, errs)
	for n, i := range g.take {
		err := errs[n]
		if err != nil {
			in.fresh.take(added[n].Key)
		}
		if err != nil && arrivals[i].mayKeepKey() {
			in.keys.Release(string(arrivals[i].Header.Origin[:]))
		}
		if err == nil {
			err = in.cfg.Fail(PointAccepted)
		}
		if err != nil {
			verdicts[i] = in.refusal(&arrivals[i], err)
		} else if r := records[n]; in.custodians[keeperOf(r)] != nil {
			in.custodians[keeperOf(r)].Taken(arrivals[i].Header.ID, r)
		}
	}
}

// replaceTombstone marks a task that was cancelled before it arrived, so that it ends as
// CANCELLED, and deletes its tombstone in the same batch. The caller calls done after the
// write, whether it succeeded or not.
func (in *Inbox) replaceTombstone(n *backlog.NewEntry) (done func()) {
	n.Stored.Record.Cancel = true
	n.BypassLimits = true
	st, err := in.queue.Prepare(in.editUnread(tombstoneKey(n.Key.ID)), func(*proto.Record) backlog.Action { return backlog.Drop })
	if err != nil {
		return func() {}
	}
	n.With = st.AddTo
	return st.Discard
}

// addSome adds those of news that have no error yet.
func (in *Inbox) addSome(ctx context.Context, added []backlog.NewEntry, errs []error) {
	var some []backlog.NewEntry
	var at []int
	for n := range added {
		if errs[n] == nil {
			some, at = append(some, added[n]), append(at, n)
		}
	}
	for j, err := range in.queue.Add(ctx, some) {
		errs[at[j]] = err
	}
}

// hasBody reports whether a file is here.
func (in *Inbox) hasBody(name string) bool {
	if in.parts.Bodies == nil || !in.parts.Bodies.Pin(name) {
		return false
	}
	in.parts.Bodies.Release(name)
	return true
}

// pinBody returns the name of the file with the body of an arrival, which is durable and
// kept before the record that refers to it is; empty if the body is in the record.
func (in *Inbox) pinBody(a *Arrival) (name string, err error) {
	switch {
	case a.streamed():
		if name = a.Header.ObjectFile(); !in.parts.Bodies.Pin(name) {
			return "", errNoBody
		}
	case a.offloaded():
		if in.parts.Files == nil {
			return "", errNoFiles
		}
		return in.parts.Files.Put(a.Envelope.Body)
	}
	return name, nil
}

// errNoBody is returned for a streamed body that was removed just now.
var errNoBody = errors.New("inbox: the streamed body is not here yet")

var errNoFiles = errors.New("inbox: this node stores no bodies larger than a record")

// refusal turns a failed write of an arrival into an answer.
func (in *Inbox) refusal(a *Arrival, err error) Verdict {
	switch {
	case errors.Is(err, backlog.ErrFull):
		return refuse(proto.CodeFull, "the limit of waiting tasks is reached")
	case errors.Is(err, store.ErrNoMemory):
		return refuse(proto.CodeFull, "the memory limit of the store is reached")
	case errors.Is(err, store.ErrFull):
		return refuse(proto.CodeFull, "the disk is below its reserve")
	case errors.Is(err, store.ErrTooLarge), errors.Is(err, errNoFiles):
		return refuse(proto.CodeTooLarge, "the task does not fit into a record here")
	case errors.Is(err, errNoBody):
		return refuse(proto.CodeNeedBody, "its body is not here yet")
	case errors.Is(err, backlog.ErrExists):
		return refuse(proto.CodeBusy, "another task with the same id is here")
	}
	in.cfg.Logger.Error("a task could not be accepted", "task", a.Header.ID.String(), "err", err)
	return refuse(proto.CodeInternal, "the task could not be written")
}

// Err returns why nothing more is written here, or nil. What the inbox says of a task then is no
// proof that the task is not on disk: nobody is told.
func (in *Inbox) Err() error { return in.store.Err() }
