<?php
// Calls the methods of the PHP library that the service has. Throws if an answer is not as expected; prints "done" at the end.
// The first argument is the folder of the library. Guzzle is Debian's.
require '/usr/share/php/GuzzleHttp/autoload.php';
spl_autoload_register(function (string $class) use ($argv) {
    $file = $argv[1] . '/src/' . str_replace('\\', '/', preg_replace('/^Resend\\\\/', '', $class)) . '.php';
    if (is_file($file)) {
        require_once $file;
    }
});
require_once $argv[1] . '/src/Resend.php';

function check(mixed $value, mixed $expected = true): void
{
    if ($value !== $expected) {
        throw new RuntimeException('expected ' . json_encode($expected) . ', got ' . json_encode($value));
    }
}

$sender = getenv('SENDER');
$resend = Resend::client(getenv('API_KEY'));

$mail = ['from' => $sender, 'to' => ['php@example.net'], 'subject' => 'Hi', 'html' => '<p>Hi</p>', 'headers' => []];
$sent = $resend->emails->send($mail, ['idempotency_key' => 'php/1']);
check($resend->emails->send($mail, ['idempotency_key' => 'php/1'])->id, $sent->id);
check($resend->emails->get($sent->id)->subject, 'Hi');
check(count($resend->batch->send([$mail, $mail])->data), 2);

$audience = $resend->audiences->create(['name' => 'Old'])->id;
check($resend->audiences->get($audience)->name, 'Old');
check($resend->audiences->remove($audience)->deleted);
$segment = $resend->segments->create(['name' => 'PHP'])->id;
$topic = $resend->topics->create(['name' => 'PHP', 'default_subscription' => 'opt_in'])->id;
$property = $resend->contactProperties->create(['key' => 'php_plan', 'type' => 'string', 'fallback_value' => 'none'])->id;
$contact = $resend->contacts->create(['email' => 'php+1@example.net', 'first_name' => 'P', 'properties' => ['php_plan' => 'free']])->id;
check($resend->contacts->create(['email' => 'PHP+1@example.net', 'properties' => []])->id, $contact);
check($resend->contacts->get('php+1@example.net')->properties['php_plan']['value'], 'free');
check($resend->contacts->update('php+1@example.net', ['last_name' => 'S'])->id, $contact);
check($resend->contacts->segments->add($contact, $segment)->id, $segment);
check($resend->contacts->segments->list($contact)->data[0]['id'], $segment);
check($resend->contacts->list(['segment_id' => $segment])->data[0]['id'], $contact);
$resend->contacts->topics->update($contact, [['id' => $topic, 'subscription' => 'opt_out']]);
check($resend->contacts->topics->get($contact)->data[0]['subscription'], 'opt_out');
check($resend->topics->update($topic, ['description' => 'About'])->id, $topic);
check($resend->topics->get($topic)->description, 'About');
check($resend->segments->get($segment)->name, 'PHP');
check($resend->contactProperties->update($property, ['fallback_value' => 'other'])->id, $property);
check($resend->contactProperties->get($property)->fallback_value, 'other');

$content = ['segment_id' => $segment, 'from' => $sender, 'subject' => 'Hi', 'html' => '<p>Hi {{{FIRST_NAME}}}</p>'];
$broadcast = $resend->broadcasts->create($content)->id;
check($resend->broadcasts->update($broadcast, ['name' => 'From PHP'])->id, $broadcast);
check($resend->broadcasts->get($broadcast)->name, 'From PHP');
check($resend->broadcasts->send($broadcast, ['scheduled_at' => 'in 1 hour'])->id, $broadcast);
check($resend->broadcasts->list()->data[0]['status'], 'scheduled');
check($resend->broadcasts->cancel($broadcast)->id, $broadcast);
check($resend->broadcasts->remove($broadcast)->deleted);

try {
    $resend->contacts->get('nobody@example.net');
    throw new RuntimeException('an unknown contact was found');
} catch (Resend\Exceptions\ErrorException $error) {
    check($error->getMessage(), 'Contact not found');
}
check($resend->contacts->segments->remove($contact, $segment)->deleted);
check($resend->contacts->remove($contact)->deleted);
check($resend->contactProperties->remove($property)->deleted);
check($resend->topics->remove($topic)->deleted);
check($resend->segments->remove($segment)->deleted);
echo "done\n";
