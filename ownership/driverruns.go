package ownership

import (
	"fmt"
	"slices"

	"github.com/balefire/balefire/proto"
)

// runRecords are what the driver stores about runs of this node besides their leases: what
// to do if the node dies meanwhile, and results that their homes have not answered.
type runRecords struct {
	policies map[proto.TaskID]Policy // of tasks that were started here
	probes   map[proto.TaskID]probe  // for handlers to probe if the node dies
	results  map[proto.TaskID]result // of finished runs

	unanswered map[proto.PeerID]int // bytes of the results, by the home that granted the task
}

// A result is stored in this many pieces.
type result struct {
	outcome   *proto.Outcome
	pieces    int
	size      int          // bytes of its encoding
	grantedBy proto.PeerID // the home that granted its task
}

// A probe is the grant stored for a task whose handler is probed if the node dies, in this
// many pieces.
type probe struct {
	grant  *proto.Grant
	pieces int
}

// Keys of runRecords in the Leases bucket.
const (
	keyPolicy = 'p' // + task id: what to do if the node dies while it runs
	keyResult = 'r' // + task id, number: a piece of a result that its home has not answered
	keyProbe  = 'g' // + task id, number: a piece of the grant of a task that is probed if the node dies
)

// maxPiece is the largest piece of a result in one record.
const maxPiece = 48 << 10

// writePieces writes what is too large for one record, and returns the number of pieces.
func (p *pendingOutput) writePieces(prefix byte, id proto.TaskID, b []byte) (pieces int) {
	for piece := range slices.Chunk(b, maxPiece) {
		p.write(Write{Key: pieceKey(prefix, id, pieces), Val: piece})
		pieces++
	}
	return pieces
}

func (p *pendingOutput) dropPieces(prefix byte, id proto.TaskID, pieces int) {
	for n := range pieces {
		p.write(Write{Key: pieceKey(prefix, id, n)})
	}
}

func pieceKey(prefix byte, id proto.TaskID, piece int) string {
	return taskKey(prefix, id) + string([]byte{byte(piece)})
}

// join takes the pieces of results and probes that were found at start, by prefix and task, of
// these runs.
func (a *runRecords) join(pieces map[string][][]byte, runs map[proto.TaskID]*run) (err error) {
	for key, all := range pieces {
		id, b := proto.TaskID([]byte(key[1:])), slices.Concat(all...)
		if key[0] == keyProbe {
			a.probes[id] = probe{new(proto.Grant), len(all)}
			err = proto.Decode(b, a.probes[id].grant)
		} else {
			r := result{outcome: new(proto.Outcome), pieces: len(all), size: len(b)}
			if x := runs[id]; x != nil {
				r.grantedBy = x.grantedBy
			}
			a.setResult(id, r)
			err = proto.Decode(b, r.outcome)
		}
		if err != nil {
			return fmt.Errorf("the grant or the result of %s: %w", id, err)
		}
	}
	return nil
}

// policy returns the crash policy that the handler of a task had at its start. If that is
// unknown, or the grant for a probe is missing, an operator decides.
func (a *runRecords) policy(id proto.TaskID) Policy {
	p, ok := a.policies[id]
	if !ok || p == PolicyProbe && a.probes[id].grant == nil {
		return PolicyPark
	}
	return p
}

// putPolicy stores, together with the start, what to do about a task if the node dies while
// it runs.
func (a *runRecords) putPolicy(p *pendingOutput, id proto.TaskID) {
	p.write(Write{Key: taskKey(keyPolicy, id), Val: []byte{byte(a.policies[id])}})
}

// keepResult stores the result of a run, encoded in b.
func (a *runRecords) keepResult(p *pendingOutput, x *run, o *proto.Outcome, b []byte) {
	id := x.claim.task
	a.setResult(id, result{o, p.writePieces(keyResult, id, b), len(b), x.grantedBy})
}

func (a *runRecords) setResult(id proto.TaskID, r result) {
	a.dropResult(id)
	a.results[id] = r
	a.unanswered[r.grantedBy] += r.size
}

func (a *runRecords) dropResult(id proto.TaskID) {
	r, ok := a.results[id]
	if !ok {
		return
	}
	delete(a.results, id)
	if a.unanswered[r.grantedBy] -= r.size; a.unanswered[r.grantedBy] <= 0 {
		delete(a.unanswered, r.grantedBy)
	}
}

// keepProbe stores the grant of a task, in the batch of its start.
func (a *runRecords) keepProbe(p *pendingOutput, id proto.TaskID, g *proto.Grant) error {
	b, err := proto.Encode(nil, g)
	if err == nil {
		a.probes[id] = probe{g, p.writePieces(keyProbe, id, b)}
	}
	return err
}

// prune drops what x, the run of a task, no longer needs: an answered result, and the policy
// of a lease that is over. x is nil if there is none.
func (a *runRecords) prune(p *pendingOutput, id proto.TaskID, x *run) {
	if r, ok := a.results[id]; ok && (x == nil || x.phase != proto.LeaseFinished) {
		p.dropPieces(keyResult, id, r.pieces)
		p.done[id] = r.outcome
		a.dropResult(id)
	}
	if _, ok := a.policies[id]; !ok || x != nil && (x.mem.alive || x.phase == proto.LeaseStarted || x.phase == proto.LeaseReceived) {
		return
	}
	delete(a.policies, id)
	p.write(Write{Key: taskKey(keyPolicy, id)})
	p.dropPieces(keyProbe, id, a.probes[id].pieces)
	delete(a.probes, id)
}

// outcome returns that of a finished run, with the fields of lease; nil if it is gone.
func (a *runRecords) outcome(id proto.TaskID, lease *proto.Outcome) *proto.Outcome {
	o := a.results[id].outcome
	if o == nil {
		return nil
	}
	o.BootId, o.LeaseToken, o.EpochBoot, o.EpochCounter = lease.BootId, lease.LeaseToken, lease.EpochBoot, lease.EpochCounter
	return o
}

// starts are the tasks that were granted to this node, from the grant to the end of the
// handler.
type starts struct {
	grants  map[proto.TaskID]receivedGrant // accepted and not started
	waiters map[proto.TaskID]chan Start    // of tasks that hold a slot
	running map[proto.TaskID]bool          // running handlers
}

type receivedGrant struct {
	from proto.PeerID
	msg  *proto.Grant
}

// begin lets the goroutine that has a slot for a task call its handler.
func (a *starts) begin(s Start) {
	if c := a.waiters[s.Task]; c != nil {
		a.running[s.Task] = true
		c <- s
		delete(a.waiters, s.Task)
		delete(a.grants, s.Task)
	}
}

// release releases the goroutine that has a slot for a task, which will not start.
func (a *starts) release(id proto.TaskID) {
	if c := a.waiters[id]; c != nil {
		close(c)
		delete(a.waiters, id)
	}
}
