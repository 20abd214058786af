package wire

// A BounceCause is the code of why nobody is told how a mail ended.
type BounceCause string

// Why nobody is told how a mail ended
const (
	BounceLoop     BounceCause = "loop"      // too many mails caused one another: a bounce might cause the next
	BounceNoSender BounceCause = "no_sender" // the mail names no sender
	BounceNoName   BounceCause = "no_name"   // it names one that cannot have a mailbox, or a node that is not known: detail
	BounceNoBox    BounceCause = "no_box"    // there is no such mailbox
	BounceFull     BounceCause = "full"      // the mailbox is full, or the node has no room for the letter: detail
	BounceRefused  BounceCause = "refused"   // the mailbox takes no mail, or not this letter: code, detail
	BounceFailed   BounceCause = "failed"    // the letter could not be sent: code, detail
)
