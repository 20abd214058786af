package ownership

import (
	"errors"

	"github.com/balefire/balefire/proto"
)

// A name of another kind than a queue, a mailbox or a topic of the mesh, has a home by deeds
// as a queue has, under the same rules and limits: see [proto.TitleKindOf]. It has nothing
// else of a queue. It is known under its whole name, its home does not hand it over, and no
// task or lane refers to it.

// errNotQueue is returned for a handoff of a name that is not a queue's.
var errNotQueue = errors.New("ownership: only queues are handed over")

// validTitle reports whether m has the kind that its name says, and the id of a group or none.
func validTitle(m *proto.QueueState) bool {
	kind, valid := proto.TitleKindOf(m.GetName())
	return kind == m.GetKind() && (valid || kind == proto.TitleQueue) && (len(m.GetGroup()) == 0 || len(m.GetGroup()) == idSize)
}

// wasHome reports whether p may speak about tasks of a queue: it is, or once was, its home,
// as far as is known. No node may of another name. That an origin sent a task to a node gives
// no such right; otherwise a node that colludes with an origin could bypass the rules of the
// queue.
func (ti *titles) wasHome(name string, p proto.PeerID) bool {
	return proto.NamesQueue(name) && ti.byName[name].wasHome(p)
}
