// Calls the methods of the Go library that the service has. Panics if an answer is not as expected; prints "done" at the end.
package main

import (
	"fmt"
	"os"

	resend "github.com/resend/resend-go/v3"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func check[T comparable](value T, expected T) {
	if value != expected {
		panic(fmt.Sprintf("expected %v, got %v", expected, value))
	}
}

func main() {
	client, sender := resend.NewClient(os.Getenv("API_KEY")), os.Getenv("SENDER")

	mail := &resend.SendEmailRequest{From: sender, To: []string{"go@example.net"}, Subject: "Hi", Html: "<p>Hi</p>"}
	sent := must(client.Emails.Send(mail))
	check(must(client.Emails.Get(sent.Id)).Subject, "Hi")
	check(len(must(client.Batch.Send([]*resend.SendEmailRequest{mail, mail})).Data), 2)

	segment := must(client.Segments.Create(&resend.CreateSegmentRequest{Name: "Go"})).Id
	topic := must(client.Topics.Create(&resend.CreateTopicRequest{Name: "Go", DefaultSubscription: resend.DefaultSubscriptionOptIn})).Id
	property := must(client.ContactProperties.Create(&resend.CreateContactPropertyRequest{Key: "go_plan", Type: "string"})).Id
	contact := must(client.Contacts.Create(&resend.CreateContactRequest{
		Email: "go+1@example.net", FirstName: "G", Properties: map[string]any{"go_plan": "free"}, Segments: []resend.ContactSegmentRef{{Id: segment}},
	})).Id
	check(must(client.Contacts.Create(&resend.CreateContactRequest{Email: "Go+1@example.net"})).Id, contact)
	check(must(client.Contacts.Get(&resend.GetContactOptions{Id: "go+1@example.net"})).FirstName, "G")
	must(client.Contacts.Update(&resend.UpdateContactRequest{Id: contact, LastName: "S"}))
	check(must(client.Contacts.List(&resend.ListContactsOptions{SegmentId: segment})).Data[0].Id, contact)
	check(must(client.Contacts.Segments.List(&resend.ListContactSegmentsRequest{Email: "go+1@example.net"})).Data[0].Id, segment)
	chosen := []resend.TopicSubscriptionUpdate{{Id: topic, Subscription: "opt_out"}}
	check(must(client.Contacts.Topics.Update(&resend.UpdateContactTopicsRequest{Id: contact, Topics: chosen})).Id, contact)
	check(must(client.Contacts.Topics.List(contact)).Data[0].Subscription, "opt_out")
	check(must(client.Topics.Update(topic, &resend.UpdateTopicRequest{Description: "About"})).Id, topic)
	check(must(client.Topics.Get(topic)).Description, "About")
	check(must(client.Segments.Get(segment)).Name, "Go")
	check(must(client.ContactProperties.Update(&resend.UpdateContactPropertyRequest{Id: property, FallbackValue: "other"})).Id, property)
	check(must(client.ContactProperties.Get(property)).FallbackValue, any("other"))
	imported := must(client.Contacts.Imports.Create(&resend.CreateContactImportRequest{
		File: []byte("email\ngo-import@example.net\n"), Filename: "people.csv", Segments: []resend.ContactImportSegment{{Id: segment}},
	}))
	check(must(client.Contacts.Imports.Get(imported.Id)).Id, imported.Id)

	broadcast := must(client.Broadcasts.Create(&resend.CreateBroadcastRequest{
		SegmentId: segment, From: sender, Subject: "Hi", Html: "<p>Hi {{{FIRST_NAME}}}</p>",
	})).Id
	check(must(client.Broadcasts.Update(&resend.UpdateBroadcastRequest{BroadcastId: broadcast, Name: "From Go"})).Id, broadcast)
	check(must(client.Broadcasts.Get(broadcast)).Name, "From Go")
	check(must(client.Broadcasts.Send(&resend.SendBroadcastRequest{BroadcastId: broadcast, ScheduledAt: "in 1 hour"})).Id, broadcast)
	check(must(client.Broadcasts.List()).Data[0].Status, "scheduled")
	check(must(client.Broadcasts.Cancel(broadcast)).Id, broadcast)
	check(must(client.Broadcasts.Remove(broadcast)).Deleted, true)

	if _, err := client.Contacts.Get(&resend.GetContactOptions{Id: "nobody@example.net"}); err == nil || err.Error() != "[ERROR]: Contact not found" {
		panic(fmt.Sprintf("an unknown contact: %v", err))
	}
	check(must(client.Contacts.Segments.Remove(&resend.RemoveContactSegmentRequest{ContactId: contact, SegmentId: segment})).Deleted, true)
	check(must(client.Contacts.Remove(&resend.RemoveContactOptions{Id: contact})).Deleted, true)
	check(must(client.ContactProperties.Remove(property)).Deleted, true)
	check(must(client.Topics.Remove(topic)).Deleted, true)
	check(must(client.Segments.Remove(segment)).Deleted, true)
	fmt.Println("done")
}
