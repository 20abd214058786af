// Package mailbox serves the mailboxes and topics of a node to its programs and to other
// nodes. It joins the broker, which keeps mail, with what the address book knows about the
// members.
//
//	wire.Mail ─▶ letter ─▶ broker ─▶ ledger        here
//	                         └─ spool ─▶ lane ─▶   the node that has the box
//	wire.DeliveredMail ◀─ session ◀─ broker
//
// A box is named agent:NAME@NODE, or topic:NAME. In the ledger the node of a mailbox is its
// id, so that it may be renamed. agent:NAME is the mailbox of that name on this node, or if
// there is none the one of the mesh.
package mailbox
