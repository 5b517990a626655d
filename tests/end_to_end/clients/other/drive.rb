# Calls the methods of the Ruby library that the service has. Raises if an answer is not as expected; prints "done" at the end.
require "json"
require "logger"
require "resend"

Resend.api_key = ENV.fetch("API_KEY")
sender = ENV.fetch("SENDER")

def check(value, expected = true)
  raise "expected #{expected.inspect}, got #{value.inspect}" unless value == expected
end

def rows(answer)
  check(answer[:has_more], false)
  answer[:data]
end

mail = { from: sender, to: ["ruby@example.net"], subject: "Hi", html: "<p>Hi</p>" }
sent = Resend::Emails.send(mail, options: { idempotency_key: "ruby/1" })
check(Resend::Emails.send(mail, options: { idempotency_key: "ruby/1" })[:id], sent[:id])
check(Resend::Emails.get(sent[:id])[:subject], "Hi")
check(Resend::Batch.send([mail, mail])[:data].length, 2)

segment = Resend::Segments.create({ name: "Ruby" })[:id]
topic = Resend::Topics.create({ name: "Ruby", default_subscription: "opt_in" })[:id]
property = Resend::ContactProperties.create({ key: "ruby_plan", type: "string", fallback_value: "none" })[:id]
contact = Resend::Contacts.create({ email: "ruby+1@example.net", first_name: "R", properties: { ruby_plan: "free" } })[:id]
check(Resend::Contacts.create({ email: "Ruby+1@example.net" })[:id], contact)
check(Resend::Contacts.get({ email: "ruby+1@example.net" })[:properties]["ruby_plan"]["value"], "free")
check(Resend::Contacts.update({ email: "ruby+1@example.net", last_name: "S" })[:id], contact)
check(Resend::Contacts::Segments.add({ email: "ruby+1@example.net", segment_id: segment })[:id], segment)
check(rows(Resend::Contacts::Segments.list({ contact_id: contact }))[0]["id"], segment)
check(rows(Resend::Contacts.list({ audience_id: segment }))[0]["id"], contact)
check(Resend::Contacts::Topics.update({ id: contact, topics: [{ id: topic, subscription: "opt_out" }] })[:id], contact)
check(rows(Resend::Contacts::Topics.list({ id: contact }))[0]["subscription"], "opt_out")
check(Resend::Topics.update({ topic_id: topic, description: "About" })[:id], topic)
check(Resend::Topics.get(topic)[:description], "About")
check(Resend::Segments.get(segment)[:name], "Ruby")
check(Resend::ContactProperties.update({ id: property, fallback_value: "other" })[:id], property)
check(Resend::ContactProperties.get(property)[:fallback_value], "other")
import = Resend::Contacts::Imports.create({ file: "email\nruby-import@example.net\n", segments: [segment] })[:id]
check(%w[queued in_progress completed].include?(Resend::Contacts::Imports.get(import)[:status]))

broadcast = Resend::Broadcasts.create({ segment_id: segment, from: sender, subject: "Hi", html: "<p>Hi {{{FIRST_NAME}}}</p>" })[:id]
check(Resend::Broadcasts.update({ broadcast_id: broadcast, name: "From Ruby" })[:id], broadcast)
check(Resend::Broadcasts.get(broadcast)[:name], "From Ruby")
check(Resend::Broadcasts.send({ broadcast_id: broadcast, scheduled_at: "in 1 hour" })[:id], broadcast)
check(Resend::Broadcasts.list[:data].map { |one| one["status"] }.include?("scheduled"))
check(Resend::Broadcasts.cancel(broadcast)[:id], broadcast)
check(Resend::Broadcasts.remove(broadcast)[:deleted], true)

begin
  Resend::Contacts.get({ id: "nobody@example.net" })
  raise "an unknown contact was found"
rescue Resend::Error => error
  check(error.message, "Contact not found")
end
[
  Resend::Contacts::Segments.remove({ contact_id: contact, segment_id: segment }), Resend::Contacts.remove({ id: contact }),
  Resend::ContactProperties.remove(property), Resend::Topics.remove(topic), Resend::Segments.remove(segment)
].each { |answer| check(answer[:deleted], true) }
puts "done"
