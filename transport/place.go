package transport

import (
	"github.com/libp2p/go-libp2p/core/protocol"

	"github.com/balefire/balefire/proto"
)

// A place is where and how messages of a type travel.
type place struct {
	stream   protocol.ID // the stream that a node opens to send them; empty: they answer on the other side's stream
	numbered bool        // they are numbered and acknowledged
	posted   bool        // by [Transport.Post]: their sender repeats them until they are answered
	urgent   bool        // leases end when these are late: they never wait behind large messages
}

func (p place) onTaskStream() bool  { return p.stream == streamTask }
func (p place) onLeaseStream() bool { return p.posted }

// Places of several types.
var (
	onCtl       = place{stream: streamCtl}
	asAnswer    = place{}
	asTask      = place{stream: streamTask, numbered: true}
	asMail      = place{stream: streamMail, numbered: true}
	asOwnership = place{stream: streamTask, posted: true} // nodes agree by them on who may run a task
	asLease     = place{stream: streamTask, posted: true, urgent: true}
)

// places lists the places of all types in ascending order. A range may include types that
// only newer nodes know.
var places = []struct {
	first, last proto.MessageType
	place
}{
	{proto.TypePing, proto.TypePong, onCtl}, // also on an echo stream
	{proto.TypeData, proto.TypeData, asTask},
	{proto.TypeAck, proto.TypeAck, asAnswer},
	{proto.TypeHello, proto.TypeHello, onCtl},
	{proto.TypeResult, proto.TypeCancel, asTask},
	{proto.TypeMark, proto.TypeMark, place{stream: streamTask}},
	{proto.TypeStarted, proto.TypeStarted, onCtl},
	{proto.TypeJoin, proto.TypeJoin, place{stream: streamJoin}},
	{proto.TypeJoined, proto.TypeJoined, asAnswer},
	{proto.TypeOffer, proto.TypeOffer, place{stream: streamChunk}},
	{proto.TypeOffered, proto.TypeOffered, asAnswer},
	{proto.TypeChunk, proto.TypeChunk, place{stream: streamChunk}},
	{proto.TypeChunked, proto.TypeChunked, asAnswer},
	{proto.TypeProbe, proto.TypeProbed, onCtl},
	{proto.TypeSync, proto.TypeSync, place{stream: streamSync}},
	{proto.TypeSynced, proto.TypeSynced, asAnswer},
	{proto.TypeGrant, proto.TypeGrant, asOwnership},
	{proto.TypeGranted, proto.TypeStatusReply, asLease},
	{proto.TypeHandoff, proto.TypeHandoff, asOwnership},
	{proto.TypeHandedOff, proto.TypeHandedOff, asLease},
	{proto.TypeEnded, proto.TypeEnded, asOwnership},
	{proto.TypeCommitted, proto.TypeCommitted, asLease},
	{proto.TypeQueues, proto.TypeQueues, asOwnership},
	{proto.TypeWithdraw, proto.TypeWithdraw, asLease},
	{proto.TypeSchedule, proto.TypeTimelineReply, asOwnership},
	{proto.TypeReady, proto.TypeLookupReply, onCtl},
	{proto.TypeQueueAsk, 59, asOwnership},
	{proto.TypeBundle, proto.TypeBoxTaken, asMail},
}

// placeTable has the places by type.
var placeTable = func() (table [128]place) {
	for i := range table {
		table[i] = asTask
	}
	for _, r := range places {
		for t := r.first; t <= r.last; t++ {
			table[t] = r.place
		}
	}
	return table
}()

// placeOf returns the place of a type. That of a type outside of all ranges, of a newer
// node, is among the tasks: there it is refused by its number, and its sender keeps it.
func placeOf(t proto.MessageType) place {
	if t < 0 || int(t) >= len(placeTable) {
		return asTask
	}
	return placeTable[t]
}

// unknown reports whether only a newer node can have sent this type.
func unknown(t proto.MessageType) bool { _, ok := proto.MessageType_name[int32(t)]; return !ok }
