// Sends one mail through every port it is given: node nodemailer.mjs '{"modules", "ports", "user", "password", "from"}'
import { createRequire } from "node:module";

const given = JSON.parse(process.argv[2]);
const nodemailer = createRequire(given.modules + "/")("nodemailer");
for (const [number, port] of Object.entries(given.ports)) {
  const transport = nodemailer.createTransport({
    host: "127.0.0.1",
    port,
    secure: number === "465" || number === "2465",
    requireTLS: true,
    tls: { rejectUnauthorized: false },
    auth: { user: given.user, pass: given.password },
  });
  const sent = await transport.sendMail({
    from: { name: "Zoë", address: given.from },
    to: "one@example.net",
    cc: "two@example.net",
    bcc: "three@example.net",
    subject: `nodemailer on ${number} ✓`,
    text: "Grüße",
    html: "<p>Grüße</p>",
    attachments: [{ filename: "größe.bin", content: Buffer.alloc(100_000, 7) }],
    dsn: { id: "n1", return: "headers", notify: ["failure", "delay"], recipient: given.from },
  });
  console.log(sent.response);
  transport.close();
}
