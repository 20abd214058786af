// Package mailstream sends and reads mail of a node over its WebSocket, with many mails in
// flight. Package client does the same with a request for each batch, and links less.
//
//	Mailer.Send ─▶ batch ─▶ frame ─▶ node ─▶ disk ─▶ result
//	ReadMail ◀── deliveries within the credit ◀── node ◀── Ack, Nack
//
// It promises that a connection that breaks is made again: what was sent is repeated with its
// number, so that it is there once, and what was delivered and not settled comes again.
package mailstream
